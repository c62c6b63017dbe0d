"""Settings chosen without a look at the test data: what is searched, by which protocol, and the search itself."""
