"""``python -I .../orchestrator/attempt/__main__.py SPEC_JSON``: without orch being installed or on any path."""

import importlib.util
import os
import sys


def load_this_orchestrator() -> None:
    """The package that this very file lies in, whatever else is called so, and nothing of what lies beside it."""
    if "orchestrator" in sys.modules:
        return                         # python -m: found already
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "orchestrator", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["orchestrator"] = module
    spec.loader.exec_module(module)


def main() -> int:
    load_this_orchestrator()
    if sys.argv[1:2] == ["--notice-step"]:
        from orchestrator.attempt import notice
        return notice.main(sys.argv[2:])
    if len(sys.argv) != 2:
        print("usage: python -I .../orchestrator/attempt/__main__.py SPEC_JSON", file=sys.stderr)
        return 2
    from orchestrator.attempt import supervise
    return supervise.main(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
