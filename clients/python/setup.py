"""Makes quire_client/_pb/ from quire.proto when the package is built.

The proto is the repository's; a source archive has a copy of its own. In descriptors it keeps its
name, quire/v1/quire.proto, so that other stubs of the same file can live in one process with ours.
"""
import pathlib
import shutil
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
IN_REPOSITORY = HERE.parent.parent / "proto" / "quire" / "v1" / "quire.proto"
IN_ARCHIVE = HERE / "quire.proto"


def proto():
    for path in (IN_REPOSITORY, IN_ARCHIVE):
        if path.exists():
            return path
    raise FileNotFoundError(f"neither {IN_REPOSITORY} nor {IN_ARCHIVE} is there")


def generate(target):
    import grpc_tools
    from grpc_tools import protoc

    well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as work:
        source = pathlib.Path(work) / "quire" / "v1"
        source.mkdir(parents=True)
        shutil.copy(proto(), source / "quire.proto")
        out = pathlib.Path(work) / "out"
        out.mkdir()
        args = ["protoc", f"-I{work}", f"-I{well_known}", f"--python_out={out}", f"--pyi_out={out}",
                f"--grpc_python_out={out}", "quire/v1/quire.proto"]
        if protoc.main(args) != 0:
            raise RuntimeError("protoc failed")
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text('"""Generated from quire/v1/quire.proto."""\n')
        for file in (out / "quire" / "v1").iterdir():
            text = file.read_text().replace("from quire.v1 import", "from . import")
            (target / file.name).write_text(text)


class BuildPy(build_py):
    def run(self):
        super().run()
        generate(pathlib.Path(self.build_lib) / "quire_client" / "_pb")


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        shutil.copy(proto(), pathlib.Path(base_dir) / "quire.proto")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
