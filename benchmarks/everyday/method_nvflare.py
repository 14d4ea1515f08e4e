from nvflare_run import run
from own import MOST

run("Clipped", f"--most {MOST}")
