"""Traces datasets and records to the datasets and records that they were made from. Changes nothing."""
