RATES = {"EUR": 1}
