"""The commands, one file each; what is heavy is imported here and not in :mod:`noisewise.cli`."""
