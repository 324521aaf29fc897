# The training: reads all of its model and its data, and prints what it was given.
set -eu
[ -n "$API_TOKEN" ] && echo "has a token"
(cd /models/llama && sha256sum --quiet --check SHA256SUMS)
for epoch in $(seq "$EPOCHS"); do
    echo "epoch $epoch: $(cat /data/* | wc -c) bytes"
done
