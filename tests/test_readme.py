import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.parametrize("number", range(5))
def test_examples_run(number, capsys):
    """The examples are short, and print what stands below them."""
    examples = re.findall(r"```python\n(.*?)```\n+prints\n+```text\n(.*?)```", README, re.DOTALL)
    assert len(examples) == README.count("```python") == 5
    code, printed = examples[number]
    assert len(code.splitlines()) <= 24
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_links_exist():
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert target.startswith("https://") or (root / target).exists(), target
