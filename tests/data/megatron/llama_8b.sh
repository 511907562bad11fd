#!/bin/bash
# Llama-3.1-8B on 4 nodes, the way launch scripts are usually written.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
MASTER_ADDR=$(scontrol show hostnames | head -n 1)
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))

TP=4; PP=4
MBS=${1:-1}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --master_addr $MASTER_ADDR
)
MODEL_ARGS="
    --num-layers 32 \
    --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --seq-length 8192 --max-position-embeddings 8192 \
    --position-embedding-type rope --normalization RMSNorm --swiglu \
    --untie-embeddings-and-output-weights --disable-bias-linear \
    --vocab-size 128256"
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size $PP   # stages
    --decoder-first-pipeline-num-layers 9
    --decoder-last-pipeline-num-layers 7
    --sequence-parallel
    --use-distributed-optimizer --overlap-grad-reduce
)
PARALLEL_ARGS+=(--overlap-param-gather)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    $MODEL_ARGS \
    "${PARALLEL_ARGS[@]}" \
    --micro-batch-size $MBS --global-batch-size=256 \
    --bf16 --attention-backend flash --recompute-activations \
    --lr 3e-4 --train-iters 1000 2>&1 | tee run.log
