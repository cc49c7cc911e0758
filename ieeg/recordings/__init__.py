"""Files of recordings read as one thing: a lazy signal in µV with names, a rate, a subject and its seizures."""
