"""One rank of an example: example_worker.py SCRIPT [ARGUMENT...]."""
import runpy
import sys

from common import end

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
end()
