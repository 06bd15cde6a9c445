"""`emberq top`: the channels of a cluster, live.

rate      messages per second, from two looks at the cluster
row       what is shown of each channel; sorting and filtering
frame     one look, ready to be shown, as a table or as JSON
view      draws it with rich, for any width
keyboard  what keys do
screen    the live screen: draws when there is news, a key or another size
"""
