"""The parts of a local web page that do not know what is shown: who may read it, how HTML is made,
and the server.

- `access.py`: only whoever knows the address reads or writes; the headers that forbid scripts and
  addresses other than ours.
- `html.py`: templates that escape everything, and show control characters instead of obeying them.
- `server.py`: the server on 127.0.0.1.

Needs `redraft[view]`; `html.py` alone needs no server.
"""
