"""Label fields with high-order patterns: algorithms on tensors."""
