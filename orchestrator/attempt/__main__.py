"""``python -m orchestrator.attempt SPEC_JSON``; also by path, under ``-I``, without orch being installed or on any path."""

import os
import sys


def main() -> int:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if root not in sys.path:
        sys.path.append(root)          # at the end: what lies beside orch must not hide the standard library
    if sys.argv[1:2] == ["--notice-step"]:
        from orchestrator.attempt import notice
        return notice.main(sys.argv[2:])
    if len(sys.argv) != 2:
        print("usage: python -m orchestrator.attempt SPEC_JSON", file=sys.stderr)
        return 2
    from orchestrator.attempt import supervise
    return supervise.main(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
