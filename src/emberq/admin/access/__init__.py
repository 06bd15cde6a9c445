"""Who asks, and what they may do. Internal.

user       users, roles, passwords
session    those who are logged in, and those who guess passwords
gate       all of it put together: who asks, and may they
"""
