"""The ClientApp, which Flower starts for each message: nothing here imports torch."""

from thinwire.deploy import flower

app = flower.client_app("quickstart.node:client")
