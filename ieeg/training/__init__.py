"""Pretraining and finetuning with Lightning."""
