"""A page before any model: a server on this machine, one page, one websocket.

page (static/engine/served.js) <-> connection.py -> model_thread.py -> engine.py -> model

requests.py      what a page may ask for, checked
engine.py        the answers: passes, their numbers, sweeps, next tokens; passes.py keeps passes
model_thread.py  one thread for the model; clients take turns
frames.py        an answer as bytes
gate.py          who is let in: token, Host, Origin
connection.py    the websocket
app.py           the addresses; page.py, the page itself
server.py        uvicorn around it: `minibert serve`, `model.live()`

starlette and uvicorn are an extra, imported where they are used.
"""
