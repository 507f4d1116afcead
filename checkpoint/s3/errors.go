package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Every request goes through retry: it repeats what failed for a transient reason, and explains
// what fails for good. Any goroutine may call the methods of Bucket here.

const (
	maxTries = 8 // tries of a request, with pauses of 11 s together
	// firstPause is the pause after the first try; each later pause is twice as long.
	firstPause     = 100 * time.Millisecond
	longestPause   = 5 * time.Second // upper bound of a pause
	requestTimeout = 5 * time.Minute // time for one try
)

// A refusal is an error that the store returned.
type refusal struct {
	code string // error code of S3, such as NoSuchBucket
	text string // what people read
}

// Error returns the text for people.
func (r *refusal) Error() string { return r.text }

// retry calls f, which makes a request, until the store answers: again after a transient failure,
// after longer and longer pauses, b.tries times at most. It waits for all that, or until ctx ends.
// operation, such as "read s3://…", is in errors what cannot be done.
func (b *Bucket) retry(ctx context.Context, operation string,
	f func(ctx context.Context) error) error {
	if err := b.checkCredentials(); err != nil {
		return fmt.Errorf("cannot %s: %w", operation, err)
	}
	for i := 1; ; i++ {
		err := b.tryOnce(ctx, f)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case i == b.tries || !isTransient(err):
			return b.explain(operation, err, i)
		}
		pause := min(firstPause<<(i-1), longestPause)
		if err := b.wait(ctx, pause/2+rand.N(pause)/2); err != nil {
			return err
		}
	}
}

// tryOnce calls f once, with a context that ends after requestTimeout.
func (b *Bucket) tryOnce(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return f(ctx)
}

// sleep sleeps for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// checkCredentials fails when there are no credentials: without them the store would only say that
// access is forbidden. To find them may read files and ask the machine's metadata service.
func (b *Bucket) checkCredentials() error {
	v, err := b.creds.GetWithContext(&credentials.CredContext{Client: b.client})
	if err == nil && v.AccessKeyID == "" {
		err = errors.New("there are none")
	}
	if err != nil {
		return fmt.Errorf("no credentials for %s: %w; set AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, where shoal is started", b.store, err)
	}
	return nil
}

// isTransient reports whether the same request can succeed later: the store is busy or away, or a
// connection was cut.
func isTransient(err error) bool {
	var said minio.ErrorResponse
	if !errors.As(err, &said) {
		var unknown x509.UnknownAuthorityError
		var wrong x509.HostnameError
		return !errors.As(err, &unknown) && !errors.As(err, &wrong)
	}
	switch said.Code {
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "RequestTimeout", "OperationAborted",
		"ConditionalRequestConflict",
		// A store that has begun to answer has said status 200.
		"InternalError", "ServiceUnavailable",
		"BadDigest", "XAmzContentSHA256Mismatch": // corrupted in transit
		return true
	}
	return said.StatusCode >= 500 && said.StatusCode != http.StatusNotImplemented ||
		said.StatusCode == http.StatusTooManyRequests ||
		said.StatusCode == http.StatusRequestTimeout
}

// explain returns an error that says what err means, after how many tries, and what to do; it is
// fs.ErrNotExist for what does not exist, and a *refusal for what the store refuses for good.
func (b *Bucket) explain(operation string, err error, tried int) error {
	var said minio.ErrorResponse
	if !errors.As(err, &said) {
		does := "does not answer as S3 does"
		if isTransportError(err) {
			does = "cannot be reached"
		}
		return fmt.Errorf("cannot %s: %s %s, tried %d times: %w; is AWS_ENDPOINT_URL_S3 right, "+
			"and the network there?", operation, b.store, does, tried, err)
	}
	if isTransient(err) {
		return fmt.Errorf("cannot %s: %s is not able to just now, tried %d times: %d %s: %w",
			operation,
			b.store, tried, said.StatusCode, said.Code, err)
	}
	because := func(hint string) error {
		return &refusal{said.Code,
			fmt.Sprintf("cannot %s: %s says %s: %v%s", operation, b.store, said.Code, err, hint)}
	}
	switch said.Code {
	case "NoSuchBucket":
		return because(fmt.Sprintf("; make the bucket %s, or correct its name", b.bucket))
	case "NoSuchKey", "NoSuchUpload", "NotFound":
		return fmt.Errorf("%w: %w", fs.ErrNotExist, because(""))
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
		"RequestTimeTooSkewed":
		return because("; check the credentials (AWS_ACCESS_KEY_ID and the others, AWS_PROFILE) " +
			"and the clock")
	case "AccessDenied", "AllAccessDisabled":
		return because("; the credentials need s3:ListBucket and s3:ListBucketMultipartUploads " +
			"on the bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject and " +
			"s3:AbortMultipartUpload on what is in it")
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "InvalidRegion",
		"IllegalLocationConstraintException":
		return because("; set AWS_REGION to the region of the bucket")
	}
	return because("")
}

// isGone reports whether an error says that an object or upload does not exist.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// ignoreIf returns nil for an error that harmless accepts, and any other error as it is.
func ignoreIf(harmless func(error) bool, err error) error {
	if err != nil && harmless(err) {
		return nil
	}
	return err
}
