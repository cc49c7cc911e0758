# One recording in, one table of seizure events out, without a network: the contract of the SzCORE benchmark.
#
#   docker build -t mvpa-ts .
#   docker run --network none -e INPUT=sub-01/patient.edf -e OUTPUT=sub-01/patient.tsv \
#       -v /path/to/recordings:/data:ro -v /path/to/results:/output mvpa-ts
#
# For research use; not a medical device. MODEL is the small detector of the package unless it names another folder of
# the image, e.g. in an image made FROM this one that COPYs a finetuned model.
FROM python:3.12-slim

WORKDIR /opt/mvpa-ts
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY mvpa_ts mvpa_ts
COPY adapters adapters
COPY ieeg ieeg
# A torch for processors alone is much smaller: --build-arg PIP_EXTRA_INDEX_URL=<its index>.
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir -c constraints.txt ".[ieeg]"

ENV INPUT="" OUTPUT="" MODEL=demo HF_HUB_OFFLINE=1 MPLBACKEND=Agg MPLCONFIGDIR=/tmp
VOLUME ["/data", "/output"]
WORKDIR /output
CMD ["sh", "-c", "mvpformer detect \"/data/$INPUT\" -o \"/output/$OUTPUT\" --model \"$MODEL\""]
