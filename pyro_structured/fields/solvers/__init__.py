"""Label fields with high-order patterns: combinatorial solvers of other libraries."""
