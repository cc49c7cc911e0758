"""MVPFormer: configuration, network, weights of others, streaming and embeddings."""
