"""One public function per device operation, each with interchangeable backends."""
