"""Wire formats: *.proto, the code generated from them, and the codec to core types."""
