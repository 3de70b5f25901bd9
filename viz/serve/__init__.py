"""A page before any model: a server on this machine, one page, one websocket.

page (static/engine/served.js) <-> connection.py -> engine.py -> model

connection.py  the websocket, an answer as bytes, one thread for the model: clients take turns
engine.py      what a page may ask for, and the answers: passes, their numbers, sweeps, next tokens
server.py      who is let in, the addresses, and uvicorn: `minibert serve`, `model.live()`

starlette and uvicorn are an extra, imported where they are used.
"""
