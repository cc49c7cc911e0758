"""Public data sets of intracranial EEG and their traps: SWEC, MAYO/FNUSA, Brain TreeBank."""
