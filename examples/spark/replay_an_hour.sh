#!/bin/sh
# Keep topics as files, and publish an hour of them again: to test a new consumer with what really happened.
#
#   replay_an_hour.sh TOPIC FOLDER 2026-11-15T06:00:00Z 2026-11-15T07:00:00Z [flags that say where NSQ is]
set -eu
topic=$1 folder=$2 start=$3 end=$4
shift 4

emberq archive "$topic" --to "$folder" --nsqd-http-address "${NSQD_HTTP:-127.0.0.1:4151}"
emberq archive compact "$folder"
emberq replay "$topic" --to "$topic.replayed" --archive "$folder" --start "$start" --end "$end" \
    --nsqd-tcp-address "${NSQD_TCP:-127.0.0.1:4150}" "$@"
