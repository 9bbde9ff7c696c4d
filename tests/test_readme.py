import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_example_runs(capsys):
    """The first example is short, and prints what stands below it."""
    code, printed = re.search(r"```python\n(.*?)```\n+prints\n+```text\n(.*?)```", README, re.DOTALL).groups()
    assert len(code.splitlines()) <= 24
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_links_exist():
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert target.startswith("https://") or (root / target).exists(), target
