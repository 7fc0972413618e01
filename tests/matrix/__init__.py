"""`make test-matrix`: one and the same wheel beside the TensorFlow releases that ringar serves."""
