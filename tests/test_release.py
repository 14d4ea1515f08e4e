"""A release: one version everywhere, wheels that say where they run, workflows that call what is here."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import types

import pytest

import thinwire as tw
from places import ROOT
from thinwire.kernels.native import build

RELEASE = runpy.run_path(str(ROOT / ".ci/release.py"))


def test_the_version_is_the_same_everywhere():
    # An installation that is older than pyproject.toml fails here: make test builds it anew.
    assert RELEASE["wrong"](ROOT, None) == []
    assert f"v{tw.__version__}" == "v" + RELEASE["newest"]((ROOT / "CHANGELOG.md").read_text())[0]
    assert not [path for path in (ROOT / "src").rglob("*.py") if re.search(r"__version__ *= *['\"]", path.read_text())]


@pytest.fixture
def released(tmp_path):
    """A tree of version 1.2.0, ready to be released."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "thinwire"\nversion = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\ndate-released: 2030-01-31\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.0 (2030-01-31)\n\nNew.\n\n## 1.1.0 (2029-01-01)\n\nOld.\n"
    )
    return tmp_path


def test_a_tag_releases_what_names_its_version_and_day(released):
    assert RELEASE["wrong"](released, "v1.2.0") == []
    assert RELEASE["newest"]((released / "CHANGELOG.md").read_text()) == ("1.2.0", "2030-01-31", "New.")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "1.2.0", "1.3.0", "the tag is v1.2.0, pyproject.toml names version 1.3.0"),
        (
            "CITATION.cff",
            "\nversion: 1.2.0",
            "\nversion: 1.1.0",
            "CITATION.cff names version 1.1.0, pyproject.toml 1.2.0",
        ),
        ("CITATION.cff", "date-released: 2030-01-31\n", "", "CITATION.cff has no line date-released: 2030-01-31"),
        ("CHANGELOG.md", "1.2.0 (2030-01-31)", "1.2.0 (unreleased)", "write the day of the release"),
        ("CHANGELOG.md", "## 1.2.0 (2030-01-31)\n\nNew.\n", "", "the first section of CHANGELOG.md is of 1.1.0"),
        ("CHANGELOG.md", "New.\n", "", "CHANGELOG.md says nothing of 1.2.0"),
    ],
)
def test_a_tag_does_not_release_what_disagrees_with_it(released, file, old, new, said):
    text = (released / file).read_text()
    assert old in text
    (released / file).write_text(text.replace(old, new, 1))
    assert any(said in one for one in RELEASE["wrong"](released, "v1.2.0"))


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """A build of a copy of the kernels, without hatchling: what it puts into a wheel, by environment."""
    folder = tmp_path / "src/thinwire/kernels/native"
    folder.mkdir(parents=True)
    here = ROOT / folder.relative_to(tmp_path)
    for file in (here / "build.py", *here.glob("*.[ch]")):
        shutil.copy(file, folder)
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    interface = types.ModuleType("interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["CompiledKernels"]()
    warnings = []
    made.root, made.target_name = str(tmp_path), "wheel"
    made.app = types.SimpleNamespace(display_warning=warnings.append)

    def run(pure, compiler, version="standard"):
        monkeypatch.delenv("THINWIRE_PURE", raising=False)
        if pure is not None:
            monkeypatch.setenv("THINWIRE_PURE", pure)
        monkeypatch.setenv("CC", compiler)
        data = {"artifacts": []}
        made.initialize(version, data)
        return data, warnings

    run.library = folder / "native.so"
    return run


PLAIN = {"artifacts": []}  # hatchling's own: py3-none-any


def test_a_wheel_without_kernels_is_for_any_platform(hook):
    hook.library.write_bytes(b"an older one")
    assert hook("1", "false") == (PLAIN, [])
    assert hook.library.exists()  # a wheel takes what is in the list of artifacts alone
    assert hook("1", "false", "editable") == (PLAIN, [])
    assert not hook.library.exists()


def test_a_failing_compiler_leaves_a_wheel_without_kernels_and_a_warning(hook):
    hook.library.write_bytes(b"an older one")
    data, warnings = hook(None, "false")
    assert (data, hook.library.exists()) == (PLAIN, False)
    assert len(warnings) == 1
    assert warnings[0].startswith("thinwire's kernels were not compiled, torch will do their work")


def test_a_release_of_compiled_wheels_fails_with_its_compiler(hook):
    with pytest.raises(RuntimeError, match="thinwire's kernels were not compiled"):
        hook("0", "false")
    with pytest.raises(RuntimeError, match="thinwire's kernels were not compiled"):
        hook("0", "no-such-compiler")


def test_a_switch_that_says_neither_is_refused(hook):
    with pytest.raises(ValueError, match="THINWIRE_PURE=yes"):
        hook("yes", "cc")


@pytest.mark.deployment
@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("cc") is None, reason="compiles on Linux")
@pytest.mark.parametrize("pure", [None, "0"])
def test_a_wheel_with_kernels_is_for_this_platform_and_every_python(hook, pure):
    data, warnings = hook(pure, "cc -O0")
    tag = f"py3-none-linux_{os.uname().machine}"
    assert data == {"artifacts": ["/src/thinwire/kernels/native/native.so"], "pure_python": False, "tag": tag}
    assert (hook.library.exists(), warnings) == (True, [])


@pytest.mark.parametrize(
    ("target", "flags", "machine", "tag", "options"),
    [
        ("11.0", "", "arm64", "macosx_11_0_arm64", "-mmacosx-version-min=11.0 -arch arm64"),
        ("10.13", "-arch arm64", "x86_64", "macosx_11_0_arm64", "-mmacosx-version-min=11.0 -arch arm64"),
        ("10.13", "", "x86_64", "macosx_10_13_x86_64", "-mmacosx-version-min=10.13 -arch x86_64"),
        ("14.4", "", "arm64", "macosx_14_0_arm64", "-mmacosx-version-min=14.0 -arch arm64"),
        (
            "10.13",
            "-arch x86_64 -arch arm64",
            "arm64",
            "macosx_10_13_universal2",
            "-mmacosx-version-min=10.13 -arch x86_64 -arch arm64",
        ),
    ],
)
def test_on_macos_the_tag_says_what_the_compiler_was_told(monkeypatch, target, flags, machine, tag, options):
    monkeypatch.setattr(build, "system", lambda: "Darwin")
    monkeypatch.setenv("MACOSX_DEPLOYMENT_TARGET", target)
    monkeypatch.setenv("ARCHFLAGS", flags)
    monkeypatch.setattr(build, "machine", lambda: machine)
    assert (build.platform(), build._target()) == (tag, options.split())


def test_the_library_of_this_tree_passes_the_check_of_a_wheel():
    if not build.LIBRARY.exists():
        pytest.skip("the kernels are not compiled here")
    said = subprocess.run([sys.executable, ROOT / ".ci/loads.py"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, f"{build.LIBRARY} loads\n"), said.stderr


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_calls_is_here(path):
    text = path.read_text()
    for name in re.findall(
        r"\.ci/\w+(?:\.py)?|\.github/[\w/.-]+\w|constraints\.txt|tests/[\w/]+\.py|hatch_build\.py", text
    ):
        assert (ROOT / name).exists(), name
    pinned = dict(line.split("==") for line in (ROOT / ".github/requirements.txt").read_text().splitlines()[1:])
    for name in re.findall(r"-c \.github/requirements\.txt (\S+)", text):
        assert name in pinned


def test_every_version_of_python_that_is_claimed_is_tested():
    project = (ROOT / "pyproject.toml").read_text()
    claimed = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    tested = re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())[1]
    assert claimed == re.findall(r"[\d.]+", tested) == ["3.11", "3.12", "3.13"]
    assert 'requires-python = ">=3.11"' in project
