"""Speaks kamu's smart transfer protocol on both sides: pull and push over a web socket, objects over HTTP."""
