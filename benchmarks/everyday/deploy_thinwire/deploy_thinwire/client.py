from thinwire.deploy import flower

app = flower.client_app("deploy_thinwire.node:client")
