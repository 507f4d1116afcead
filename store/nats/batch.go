package nats

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/record"
)

// The headers of a message that is part of a batch, which the server carries out as a whole, with
// one synchronisation of the disk (NATS ADR-50).
const (
	batchHeader  = "Nats-Batch-Id"
	numberHeader = "Nats-Batch-Sequence"
	commitHeader = "Nats-Batch-Commit"
)

// Codes of JetStream for a key that does not hold what a write expects.
const (
	wrongLast     = 10071
	wrongLastAlso = 10164
)

// maxBatch is how many writes the server takes in a batch.
const maxBatch = 1000

// allowBatches has the server take batches for the bucket, and waits for its answer. connect calls
// it before others know the session.
func (s *session) allowBatches(ctx context.Context) error {
	c := s.stream.CachedInfo().Config
	if c.AllowAtomicPublish {
		return nil
	}
	c.AllowAtomicPublish = true
	_, err := s.js.UpdateStream(ctx, c)
	return err
}

// Batch implements store.Batcher: it writes several keys at once, or none. Any goroutine may call
// it; it waits for the server.
func (e *embedded) Batch(ctx context.Context, puts []store.Put) (list []store.Revision, err error) {
	if len(puts) == 0 {
		return nil, nil
	}
	if len(puts) > maxBatch {
		return nil, fmt.Errorf("%d writes in a batch, of which there can be %d", len(puts),
			maxBatch)
	}
	for _, p := range puts {
		if err := record.CheckEntry(p.Key, p.Value); err != nil {
			return nil, err
		}
	}
	err = e.call(ctx, puts[0].Key, func(ctx context.Context, s *session) error {
		last, err := s.publish(ctx, puts)
		for i := range puts {
			list = append(list, store.Revision(last-uint64(len(puts)-1-i)))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// publish sends a batch, which is not empty, waits for the answer, and returns the revision of the
// last write; those before it have the numbers before. Several goroutines may call it at once.
func (s *session) publish(ctx context.Context, puts []store.Put) (last uint64, err error) {
	text := make([]byte, 8)
	_, _ = rand.Read(text) // does not fail
	id := hex.EncodeToString(text)
	var reply *nats.Msg
	for i, p := range puts {
		m := nats.NewMsg(subjects + p.Key)
		m.Data = p.Value
		m.Header.Set(batchHeader, id)
		m.Header.Set(numberHeader, strconv.Itoa(i+1))
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(uint64(p.Was), 10))
		if i < len(puts)-1 {
			if err := s.conn.PublishMsg(m); err != nil {
				return 0, err
			}
			continue
		}
		m.Header.Set(commitHeader, "1")
		if reply, err = s.conn.RequestMsgWithContext(ctx, m); err != nil {
			return 0, err
		}
	}
	var answer struct {
		Error    *jetstream.APIError `json:"error"`
		Sequence uint64              `json:"seq"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return 0, fmt.Errorf("the answer to a batch: %w", err)
	}
	switch no := answer.Error; {
	case no != nil && (no.ErrorCode == wrongLast || no.ErrorCode == wrongLastAlso):
		return 0, jetstream.ErrKeyRevisionMismatch
	case no != nil:
		return 0, no
	}
	return answer.Sequence, nil
}
