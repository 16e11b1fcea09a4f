"""The scheduling protocol as data: the one place where a protocol fact is written."""
