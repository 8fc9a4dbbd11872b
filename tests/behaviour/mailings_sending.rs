//! Mailings on their way: pause, cancel, failures, crashes, two at once, links.
