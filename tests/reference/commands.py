"""What the tests of commands share: a query file, and the sentence of a command that must be refused."""

from noisewise import cli

QUERY = """
[columns]
x = { lower = 0, upper = 10, origin = "questionnaire" }

[[measurement]]
name = "sum"
query = "moments"
terms = [{ x = 1 }]
noise = { law = "laplace", epsilon = 2.0 }
"""


def refused(capsys, *arguments) -> str:
    """The sentence of a command that must be refused: exit code 2, nothing on stdout, one line, no traceback."""
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    assert captured.err.startswith("noisewise: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err
