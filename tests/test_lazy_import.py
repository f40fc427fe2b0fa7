"""Without torch: importing, loading, running and inspecting a file work, and the rest says what to install.

Each check runs in a process of its own in which importing torch (or anything else that is heavy) fails.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import subbit

BLOCK = """
import sys

BLOCKED = {"torch", "lightning", "matplotlib", "jinja2", "pooch", "tensorboard"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return None

sys.meta_path.insert(0, Blocker())
"""


def run(code: str, *args: str, block: bool = True) -> subprocess.CompletedProcess[str]:
    script = (BLOCK if block else "") + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, check=False)


def printed(code: str, *args: str, block: bool = True) -> str:
    done = run(code, *args, block=block)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from subbit.methods import SLBF
    from subbit.models import lenet5

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("packed") / "net.sbit"
    model = subbit.compress(lenet5(), SLBF(f1=1, f2="1/4"))
    subbit.pack(model, path, example=torch.zeros(1, 1, 28, 28))
    return path


def test_import_brings_in_no_package_but_numpy() -> None:
    code = """
        import sys
        before = set(sys.modules)
        import subbit
        new = {name.split(".")[0] for name in set(sys.modules) - before}
        print(*sorted(new - set(sys.stdlib_module_names) - {"subbit"}))
    """
    assert printed(code, block=False) in ("", "numpy")


def test_names_are_listed_and_unknown_ones_are_attribute_errors_without_torch() -> None:
    code = """
        import subbit
        assert set(subbit.__all__) <= set(dir(subbit))
        assert not hasattr(subbit, "quantize")
        print(subbit.__version__)
    """
    assert printed(code) == subbit.__version__


@pytest.mark.parametrize("name", ["compress", "pack", "methods", "models"])
def test_names_that_need_torch_say_how_to_get_it(name: str) -> None:
    code = """
        import sys, subbit
        try:
            getattr(subbit, sys.argv[1])
        except subbit.MissingDependency as error:
            assert isinstance(error, ImportError)
            print(error)
    """
    assert printed(code, name) == (f"subbit.{name} needs torch, which is not installed: pip install 'subbit[train]'")


def test_inspecting_a_model_says_how_to_get_torch() -> None:
    code = """
        import subbit
        try:
            subbit.inspect(object(), (3, 32, 32))
        except subbit.MissingDependency as error:
            print(error)
    """
    assert printed(code) == "inspecting a model needs torch, which is not installed: pip install 'subbit[train]'"


def test_file_is_inspected_without_torch(packed: Path) -> None:
    code = """
        import sys, subbit
        report = subbit.inspect(sys.argv[1])
        print(report.stored_bytes, len(report.layers), "torch" in sys.modules)
        assert "total" in str(report)
    """
    assert printed(code, str(packed)) == f"{packed.stat().st_size} 4 False"


def test_file_is_loaded_and_run_without_torch(packed: Path) -> None:
    import torch

    code = """
        import sys
        import numpy as np
        import subbit
        logits = subbit.load(sys.argv[1])(np.ones((2, 1, 28, 28), dtype=np.float32))
        assert "torch" not in sys.modules
        print(*logits.ravel().tolist())
    """
    logits = np.array(printed(code, str(packed)).split(), dtype=np.float32)
    expected = subbit.load(packed)(torch.ones(2, 1, 28, 28).numpy())
    np.testing.assert_array_equal(logits, expected.ravel())


def test_command_line_without_torch(packed: Path) -> None:
    code = """
        import sys
        from subbit.cli import main
        main(sys.argv[1:])
    """
    listing = run(code, "--help")
    assert listing.returncode == 0, listing.stderr
    assert "inspect" in listing.stdout
    table = run(code, "inspect", str(packed))
    assert table.returncode == 0, table.stderr
    assert f"= {packed.stat().st_size:,} bytes" in table.stdout
    model = run(code, "inspect", "--model", "lenet5", "--f1", "1", "--f2", "1/4")
    assert model.returncode == 2
    assert model.stdout == ""
    assert model.stderr == "error: subbit inspect needs torch, which is not installed: pip install 'subbit[train]'\n"


def test_help_imports_nothing_heavy() -> None:
    code = """
        import sys
        from subbit.cli import main
        try:
            main(["--help"])
        except SystemExit:
            pass
        print("heavy:", *({"torch", "lightning", "matplotlib", "pandas"} & set(sys.modules)))
    """
    assert printed(code, block=False).splitlines()[-1] == "heavy:"
