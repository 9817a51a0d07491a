"""How requests and answers of the REST API are written: exact quantities, strict reading, stable pages. Knows no app."""
