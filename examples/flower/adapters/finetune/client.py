"""The ClientApp, which Flower starts for each message: nothing here imports torch or transformers."""

from thinwire.deploy import flower

app = flower.client_app("finetune.node:client", idle=3600)
