// Schedules work from Go, in a transaction of your own, by pgx and go-redis.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// errAlreadyAskedFor: this report was asked for in another format. An API answers with 409.
var errAlreadyAskedFor = errors.New("the report was asked for in another format")

// scheduleReport writes the report and its work, in the caller's transaction: both or neither.
func scheduleReport(ctx context.Context, tx pgx.Tx, tenantID, reportID int64, format string) (runID string, err error) {
	if _, err = tx.Exec(ctx, "select set_config('app.tenant_id', $1, true)", strconv.FormatInt(tenantID, 10)); err != nil {
		return "", err
	}
	insert := "insert into reports (id, format) values ($1, $2) on conflict (id) do nothing"
	if _, err = tx.Exec(ctx, insert, reportID, format); err != nil {
		return "", err
	}
	payload := map[string]any{"report_id": reportID, "format": format}
	dispatch := "select work.dispatch('reports.export', $1, idempotency_key => $2)::text"
	err = tx.QueryRow(ctx, dispatch, payload, fmt.Sprintf("report-%d", reportID)).Scan(&runID)
	return runID, err
}

// requestReport is the use case: one transaction, then the wake.
func requestReport(ctx context.Context, pool *pgxpool.Pool, valkey *redis.Client, tenantID, reportID int64, format string) (runID string, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		runID, err = scheduleReport(ctx, tx, tenantID, reportID, format)
		return err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "ML008" { // IDEMPOTENCY_CONFLICT
		return "", errAlreadyAskedFor
	}
	if err != nil {
		return "", err
	}
	wake(ctx, valkey)
	return runID, nil
}

// wake wakes the relay after a commit. It never fails: without it the work waits for the next sweep.
func wake(ctx context.Context, valkey *redis.Client) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = valkey.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.LPush(ctx, "monalisa:outbox:wake", 1)
		pipe.LTrim(ctx, "monalisa:outbox:wake", 0, 15)
		return nil
	})
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	options, err := redis.ParseURL(os.Getenv("MONALISA_VALKEY_URL"))
	if err != nil {
		panic(err)
	}
	// A try of a second, and no further ones: the commit stands anyway.
	options.DialTimeout, options.MaxRetries, options.ContextTimeoutEnabled = time.Second, -1, true
	runID, err := requestReport(ctx, pool, redis.NewClient(options), 1, 7, "pdf")
	fmt.Println("scheduled", runID, err)
}
