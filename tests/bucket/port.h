/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BRIGADE_TESTS_BUCKET_PORT_H
#define BRIGADE_TESTS_BUCKET_PORT_H

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket on a free port of the loopback interface. */
struct Port {
    int fd = -1, number = 0;
    Port()
    {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address = {};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        EXPECT_EQ(bind(fd, (sockaddr *)&address, length), 0);
        EXPECT_EQ(getsockname(fd, (sockaddr *)&address, &length), 0);
        number = ntohs(address.sin_port);
    }
    int release()
    {
        close(fd);
        fd = -1;
        return number;
    }
    ~Port()
    {
        if (fd >= 0)
            close(fd);
    }
};

#endif
