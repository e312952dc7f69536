"""deepagents is loaded when it is needed, and the error says so if it is missing."""

from support.scripts import run_script


def test_importing_the_adapters_does_not_load_deepagents() -> None:
    printed = run_script("""
        import sys
        import deepfs.compat.adapters, deepfs.compat.deepagents
        print(sorted({"deepagents", "langgraph", "langchain_core"} & {name.partition(".")[0] for name in sys.modules}))
    """)
    assert printed == "[]\n"


def test_without_deepagents_the_error_says_what_to_install() -> None:
    printed = run_script("""
        import sys
        sys.modules["deepagents"] = None
        from deepfs import MemoryBackend
        from deepfs.compat.deepagents import (from_deepagents, to_deepagents)
        for bridge in (from_deepagents, to_deepagents):
            try:
                bridge(MemoryBackend())
            except ImportError as error:
                print(error)
    """)
    assert printed == "deepfs.compat.deepagents needs deepagents: pip install 'deepagents>=0.7.32'\n" * 2
