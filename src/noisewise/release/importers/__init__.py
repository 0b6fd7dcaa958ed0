"""Releases made by other tools: one file a tool, each reading what the tool itself says about its noise.

The analyst calls them as ``nw.Release.from_opendp(...)`` and so on. None of them imports the tool: an object is asked for
what it carries, a document is read as data, and nothing that a file names is ever run.
"""
