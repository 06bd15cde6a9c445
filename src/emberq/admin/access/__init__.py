"""Who asks, and what they may do.

role       what each role may do
password   scrypt hashes
users      the file of users
session    those who logged in
throttle   those who guess passwords
origin     requests that another site had a browser make
network    ranges of addresses
gate       all of it put together: who is this, and may they?
"""
