"""The ClientApp, whose client is made in its worker."""

from thinwire.deploy import flower

app = flower.client_app("tested.node:Tested")
