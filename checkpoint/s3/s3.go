// Package s3 keeps checkpoints of running jobs in a bucket of Amazon S3, or of any store that
// speaks its protocol, as docs/formats/job-checkpoints.md describes. It implements snapshot.Store,
// copies a checkpoint from there to a folder, presents it as files to readers of formats, and takes
// files from writers. The agent and the command line use it; no worker does.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const scheme = "s3://"

// A Bucket is the objects below s3://BUCKET/PREFIX. Several goroutines may use it at once: nothing
// changes it after Open. Methods that take a context make requests, by retry, and wait for them.
type Bucket struct {
	url    string                   // s3://BUCKET/PREFIX, without a trailing slash
	bucket string                   // name of the bucket in the store
	prefix string                   // prefix of the keys: empty, or with a trailing slash
	store  string                   // endpoint, for messages
	core   minio.Core               // client that makes the requests
	creds  *credentials.Credentials // finds credentials, and keeps them until they expire
	client *http.Client             // client by which creds asks for credentials
	unit   int                      // least bytes of a part of an upload
	tries  int                      // tries of a request that fails for a transient reason
	// wait pauses between two tries; tests replace it.
	wait func(ctx context.Context, d time.Duration) error
}

// Open parses s3://BUCKET/PREFIX, and reads endpoint and credentials from the environment. It does
// not talk to the store yet.
func Open(address string) (*Bucket, error) {
	rest, ok := strings.CutPrefix(address, scheme)
	bucket, prefix, _ := strings.Cut(rest, "/")
	if prefix != "" {
		prefix = strings.TrimSuffix(prefix, "/")
		ok = ok && prefix == path.Clean(prefix) && prefix[0] != '/' && prefix != "." &&
			!strings.HasPrefix(prefix, "..")
	}
	if !ok || bucket == "" || strings.ContainsAny(address, "\x00?#\\") {
		return nil, fmt.Errorf(
			"%.200q names no folder of a bucket: give s3://BUCKET or s3://BUCKET/PREFIX, and in "+
				"AWS_ENDPOINT_URL_S3 the address of a store that is not Amazon's",
			address)
	}
	e, err := readSettings()
	if err != nil {
		return nil, err
	}
	b := &Bucket{url: scheme + path.Join(bucket, prefix), bucket: bucket, store: e.String(),
		creds: e.credentials(), unit: unitBytes, tries: maxTries, wait: sleep}
	if prefix != "" {
		b.prefix = prefix + "/"
	}
	transport, err := minio.DefaultTransport(e.secure)
	if err != nil {
		return nil, err
	}
	return b, b.connect(e, transport)
}

// connect makes the client of the store with these settings, which uses a transport. It sends
// nothing. Open calls it, before others have b.
func (b *Bucket) connect(e settings, transport http.RoundTripper) error {
	transport = checkedTransport{transport}
	b.client = &http.Client{Transport: transport}
	core, err := minio.NewCore(e.host,
		&minio.Options{Creds: b.creds, Secure: e.secure, Region: e.region, Transport: transport,
			MaxRetries: 1})
	if err != nil {
		return fmt.Errorf("the endpoint %s: %w", e, err)
	}
	b.core = *core
	return nil
}

// String returns the URL.
func (b *Bucket) String() string { return b.url }

// key returns the key of a name below the prefix.
func (b *Bucket) key(name string) string { return b.prefix + name }

// An object is an entry of a listing.
type object struct {
	name     string // name below the prefix
	size     int64  // in bytes
	modified time.Time
}

// list returns the objects whose names begin with begin: all of them if recursive, else those up to
// the next slash, where a name that ends with a slash is a folder. More than maxListed are an
// error.
func (b *Bucket) list(ctx context.Context, begin string, recursive bool) (found []object,
	err error) {
	owner := false
	err = b.retry(ctx, "list "+b.url, func(ctx context.Context) error {
		found = nil
		for o := range b.core.ListObjectsIter(ctx, b.bucket,
			minio.ListObjectsOptions{Prefix: b.key(begin), Recursive: recursive,
				FetchOwner: &owner}) {
			name := strings.TrimPrefix(o.Key, b.prefix)
			switch {
			case o.Err != nil:
				return o.Err
			case !strings.HasPrefix(o.Key, b.key(begin)):
				return protocolErrorf("it lists %.200q, which does not begin with %q", o.Key,
					b.key(begin))
			case o.Size < 0:
				return protocolErrorf("it lists %.200q with %d bytes", o.Key, o.Size)
			case len(found) > 0 && found[0].name == name:
				return protocolErrorf("its list begins again, with %.200q", o.Key)
			}
			if found = append(found,
				object{name, o.Size, o.LastModified}); len(found) > maxListed {
				return nil
			}
		}
		return nil
	})
	return found, cmp.Or(err, b.checkCount(len(found)))
}

// checkCount fails when a list has more entries than there is memory for.
func (b *Bucket) checkCount(n int) error {
	if n > maxListed {
		return fmt.Errorf(
			"below %s are more than %d objects or uploads; give a folder further down, with fewer",
			b.url, maxListed)
	}
	return nil
}

// An upload is an unfinished multipart upload: the name below the prefix, and the store's for it.
type upload struct{ name, id string }

// uploads lists the unfinished uploads whose names begin with begin; none where the store does not
// tell. They take space until somebody aborts them.
func (b *Bucket) uploads(ctx context.Context, begin string) (found []upload, err error) {
	err = b.retry(ctx, "list the uploads to "+b.url, func(ctx context.Context) error {
		found = nil
		key, id := "", ""
		for {
			r, err := b.core.ListMultipartUploads(ctx, b.bucket, b.key(begin), key, id, "", 1000)
			if err != nil {
				return err
			}
			for _, u := range r.Uploads {
				if name, ok := strings.CutPrefix(u.Key, b.key(begin)); ok {
					found = append(found, upload{begin + name, u.UploadID})
				}
			}
			before := [2]string{key, id}
			if key, id = r.NextKeyMarker, r.NextUploadIDMarker; !r.IsTruncated || key == "" ||
				len(found) > maxListed {
				return nil
			}
			if before == [2]string{key, id} {
				return protocolErrorf("its list of uploads does not go on after %.200q", key)
			}
		}
	})
	var refused *refusal
	if errors.As(err, &refused) && refused.code != "NoSuchBucket" {
		return nil, nil
	}
	return found, cmp.Or(err, b.checkCount(len(found)))
}

// put writes a small object in one request.
func (b *Bucket) put(ctx context.Context, name string, text []byte) error {
	return b.retry(ctx, "write "+b.url+"/"+name, func(ctx context.Context) error {
		_, err := b.core.PutObject(ctx, b.bucket, b.key(name), bytes.NewReader(text),
			int64(len(text)), "", "", minio.PutObjectOptions{})
		return err
	})
}

// remove removes an object. A missing one is no error.
func (b *Bucket) remove(ctx context.Context, name string) error {
	err := b.retry(ctx, "remove "+b.url+"/"+name, func(ctx context.Context) error {
		return b.core.RemoveObject(ctx, b.bucket, b.key(name), minio.RemoveObjectOptions{})
	})
	return ignoreIf(isGone, err)
}

// stat asks for the size and time of an object. The error is fs.ErrNotExist when there is none.
func (b *Bucket) stat(ctx context.Context, name string) (o object, err error) {
	err = b.retry(ctx, "read "+b.url+"/"+name, func(ctx context.Context) error {
		info, err := b.core.StatObject(ctx, b.bucket, b.key(name), minio.StatObjectOptions{})
		if err == nil && info.Size < 0 {
			err = protocolErrorf("it does not say how many bytes %s has", b.key(name))
		}
		o = object{name, info.Size, info.LastModified}
		return err
	})
	return o, err
}

// read fills to with the bytes of an object from an offset on. Fewer bytes are an error.
func (b *Bucket) read(ctx context.Context, name string, to []byte, at int64) error {
	if len(to) == 0 {
		return nil
	}
	return b.retry(ctx, "read "+b.url+"/"+name, func(ctx context.Context) error {
		var o minio.GetObjectOptions
		if err := o.SetRange(at, at+int64(len(to))-1); err != nil {
			return err
		}
		body, _, _, err := b.core.GetObject(ctx, b.bucket, b.key(name), o)
		if err == nil && body == nil { // status 202, for example
			err = protocolErrorf("it sends nothing of %s", b.key(name))
		}
		if err != nil {
			return err
		}
		if _, err = io.ReadFull(body, to); err != nil {
			err = &url.Error{Op: "Get", URL: b.url + "/" + name, Err: err}
		}
		return errors.Join(err, body.Close())
	})
}

// readAll reads an object of up to most bytes; a larger one is an error.
func (b *Bucket) readAll(ctx context.Context, name string, most int64) ([]byte, error) {
	o, err := b.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	if o.size > most {
		return nil, fmt.Errorf("%s/%s has %d bytes, the limit is %d", b.url, name, o.size, most)
	}
	text := make([]byte, o.size)
	return text, b.read(ctx, name, text, 0)
}
