"""The torch side around the methods: estimators of the sign, `compress` and `pack`."""
