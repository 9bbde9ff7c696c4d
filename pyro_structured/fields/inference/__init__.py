"""Label fields with high-order patterns: inference with Pyro."""
