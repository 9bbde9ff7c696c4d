"""Label fields with high-order patterns: immutable descriptions."""
