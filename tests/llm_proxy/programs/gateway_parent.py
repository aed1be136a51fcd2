"""Holds a gateway in a process of its own, says where it is, and waits: `gateway_parent.py MODELS STORE MODE`.

MODE: `wait` until killed; `fork` the same, with a fork that outlives it; `interrupt` asks the gateway once more after
Ctrl-C, then stops it in order.
"""

import json
import os
import sys
import time
import urllib.request

from sharpen import SQLiteStore
from sharpen.llm_proxy import LLMProxy

models, store, mode = sys.argv[1:]
proxy = LLMProxy(model_list=json.loads(models), store=SQLiteStore(store), launch_mode="process")
proxy.start_sync()
fork = 0
if mode == "fork":
    fork = os.fork()
    if fork == 0:
        time.sleep(60)
        os._exit(0)
try:
    print(json.dumps({"pid": proxy.pid, "port": proxy.port, "fork": fork}), flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.port}/health") as answer:
        print("answered", answer.status, flush=True)
    proxy.stop_sync()
    print("stopped", proxy.is_running(), flush=True)
