import importlib.util
import inspect
from pathlib import Path

from deepfs.testing import BackendStateMachine

B = Path("/work/main/tests/backends")


def load(name):
    sp = importlib.util.spec_from_file_location("x" + name, B / f"{name}.py")
    m = importlib.util.module_from_spec(sp)
    sp.loader.exec_module(m)
    return m


fs = load("test_filesystem_conformance")
stt = load("test_state_conformance")
sto = load("test_store_conformance")
bs = load("test_bound_store_conformance")


def only(base):
    d = {k: None for k in dir(base) if k.startswith("test_")}
    d.pop("test_random_programs_do_what_a_model_does", None)
    return d


def mk():
    for m in (fs, stt, sto, bs):
        for n, c in vars(m).copy().items():
            if inspect.isclass(c) and n.startswith("Test"):
                globals()[n + "SM" + m.__name__] = type(
                    n + "SM",
                    (c, BackendStateMachine),
                    {
                        **only(c),
                        "test_random_programs_do_what_a_model_does": BackendStateMachine.test_random_programs_do_what_a_model_does,
                        **({"steps": 300} if "State" in n else {}),
                    },
                )


mk()

m = load("../testing/test_memory_conformance")
class TestMountedSM(m.TestMountedTree):
    steps = 20000
m = None
